"""The sink: records of Spark's tasks, written to topics.

It knows the options of writes (`options/sink_options.py`), encodes typed columns as bytes (`values/column_writers.py`)
and Arrow columns as record batches (`records/columns/batch_encoder.py`), and sends batches
(`client/records/producer.py`). It knows nothing of Spark's plans and checkpoints: `spark/sink_writers.py` calls it.

At least once
=============

A write task encodes its records into record batches by partition, sends them with an idempotent producer to all
leaders, and returns when all are acknowledged (`output_task.py`). Spark's commit does nothing more. A task that Spark
runs again writes its records again.

Exactly once
============

With ``kafka.transactional.id``, a task sends nothing: its batches travel to the driver in its commit message
(`TaskOutput`), and Spark's commit, in a Python process of the driver (`output_commit.py`), publishes them in one
transaction (`publisher.py`): the output, the offsets that the reader processes of the query add (`reader_sources.py`),
and the number of the batch, by which a replay is recognized.
"""
