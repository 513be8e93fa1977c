"""Histories of clients that write and read logs, and their anomalies.

A history is the list of operations that several clients performed while brokers were killed, frozen and cut off
(`history.py`). `checker.py` finds the anomalies that a broker or a client with a defect leaves in one. The kinds are
those of Jepsen's Kafka workload, from its published description; the code is this project's own.

To repeat a history, give its seed to `record.py`. A new kind of anomaly is a function in `checker.py` and a planted
history in `test_checker.py`.
"""
