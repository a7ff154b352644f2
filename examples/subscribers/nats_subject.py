"""Print the events of a subject, as they come.

bucketwire target set nats:1 address=localhost:4222 subject=minio.events
pip install nats-py
"""

import asyncio, json, nats


async def main():
    client = await nats.connect("nats://localhost:4222")
    events = await client.subscribe("minio.events")
    async for message in events.messages:
        event = json.loads(message.data)
        print(event["EventName"], event["Key"])


asyncio.run(main())
