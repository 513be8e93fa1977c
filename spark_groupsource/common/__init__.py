"""What every package may use: clock, deadlines, sockets, settings, TLS.

Nothing here knows Kafka's messages, Spark, or another package of the project but `errors` and `model`.

* Time: `clock.py` (the only reader of the clock), `deadlines.py` and `timers.py` (pure).
* Sockets: `net.py`: addresses, connections and listeners with deadlines that arriving bytes extend.
* Processes: `processors.py` (affinity and quotas of control groups), `descriptors.py` (limit of file descriptors).
* Settings: `config_def.py` (a setting is a row: name, type, default, text), `config_providers.py` (references to
  secrets), `properties_text.py` (Java's syntax), `name_patterns.py` (regular expressions that select names).
* TLS: `tls_options.py` (settings), `tls_stores.py` (PEM, PKCS12), `tls_contexts.py` (contexts of both sides).
"""
