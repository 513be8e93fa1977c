"""A PySpark data source that makes a Spark application a Kafka consumer group."""
