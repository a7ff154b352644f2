"""What an event is and how every frontend's body becomes events. Standard library and orjson only."""
