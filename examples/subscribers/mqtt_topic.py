"""Print the events of a topic; the broker keeps those that arrive while this does not run.

bucketwire target set mqtt:1 broker=tcp://localhost:1883 topic=minio/events qos=1
pip install paho-mqtt
"""

import json, paho.mqtt.client as mqtt


def show(_client, _userdata, message):
    for record in json.loads(message.payload)["Records"]:
        print(record["eventName"], record["s3"]["bucket"]["name"], record["s3"]["object"]["key"])


client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="thumbnails", clean_session=False)
client.on_message, client.on_connect = show, lambda client, *_: client.subscribe("minio/events", qos=1)
client.connect("localhost", 1883)
client.loop_forever()
