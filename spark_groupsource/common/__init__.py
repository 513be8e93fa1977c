"""What every package may use: clock, deadlines, sockets, settings, TLS.

Nothing here knows Kafka's messages, Spark, or another package of the project but `errors` and `model`.

* Time: `clock.py` (the clock of deadlines and records), `deadlines.py` and `timers.py` (pure), `coroutines.py` (long
  work on an event loop, in slices).
* Sockets: `net.py`: addresses, connections and listeners with deadlines that arriving bytes extend.
* Processes: `processors.py` (affinity and quotas of control groups), `descriptors.py` (limit of file descriptors).
* Settings: `config_def.py` (a setting is a row: name, type, default, text), `config_providers.py` (references to
  secrets), `properties_text.py` (Java's syntax), `name_patterns.py` (regular expressions that select names),
  `arguments.py` (checks of the arguments of Python calls).
* TLS: `tls_options.py` (settings), `tls.py` (their values, failed handshakes), `tls_stores.py` (PEM, PKCS12, JKS),
  `tls_contexts.py` (contexts of both sides).
"""
