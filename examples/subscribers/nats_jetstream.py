"""Print the events of a stream, from where the durable consumer `mine` stopped; the stream has to exist.

bucketwire target set nats:2 address=localhost:4222 subject=minio.events jetstream=on
pip install nats-py
"""

import asyncio, json, nats


async def main():
    client = await nats.connect("nats://localhost:4222")
    events = await client.jetstream().subscribe("minio.events", durable="mine")
    async for message in events.messages:
        event = json.loads(message.data)
        print(event["EventName"], event["Key"], message.headers["Nats-Msg-Id"])
        await message.ack()


asyncio.run(main())
