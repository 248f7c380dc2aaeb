"""Records of logs, whose values are bytes: Kafka's and Pravega's."""
