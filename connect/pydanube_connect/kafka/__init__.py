"""`kafka-source`: records of Kafka topics as messages."""
