"""Print the events of a stream, from where the durable consumer `mine` stopped."""

import asyncio, json, nats


async def main():
    client = await nats.connect("nats://localhost:4222")
    events = await client.jetstream().subscribe("minio.events", durable="mine")
    async for message in events.messages:
        event = json.loads(message.data)
        print(event["EventName"], event["Key"], message.headers["Nats-Msg-Id"])
        await message.ack()


asyncio.run(main())
