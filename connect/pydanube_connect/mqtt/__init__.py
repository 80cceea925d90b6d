"""`mqtt-source`: messages of an MQTT broker as messages of a topic."""
