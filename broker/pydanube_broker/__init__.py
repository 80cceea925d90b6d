"""The broker: journal, topics, delivery and the services in front of them."""
