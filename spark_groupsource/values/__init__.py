"""Keys and values as typed columns: JSON, Avro, Protobuf, numbers, text.

It knows schemas and bytes. It knows no query, and of topics only that subjects are named by them:
`source/options/value_options.py` passes options in, `source/tasks/task_reader.py` the columns that `records` has
decoded, and `source/sink/output_task.py` those to write.

A block of values
=================

1. `typed_columns.py` gets the binary column of one Arrow batch.
2. With a schema registry, the header of each value names its writer's schema (`registry/schema_headers.py`); the
   values of one schema are decoded together (`registry/registry_client.py` keeps schemas).
3. One decoder for each format reads the whole block: `json` (PyArrow's reader, or a compiled scanner), `avro` and
   `protobuf` (`lanes`: all values of the block advance field by field together).
4. What the decoder of blocks leaves, because it is malformed or rare, is decoded value by value. Both paths must
   give the same value or the same reason: the tests compare them, with and without neighbors that force the other
   path.
5. A malformed value becomes an error, nulls with `_error`, or is dropped, by the option `mode` (`decoded.py` has
   value, reason and place).

No input may raise anything else. Schemas are resolved where a column is selected, so that a field that Spark cannot
represent hinders no other (`avro/avro_expansion.py`, `protobuf/protobuf_schema.py`).

Writing
=======

`column_writers.py` gets the typed columns of a write task and returns binary ones: `text_writer.py`, `serdes.py`, and
the module `*_writer.py` of each format. A writer computes the lengths of all values as arrays and joins their parts
once; it has no second path for single values. A schema is that of an option, a version of a subject, or derived from
the column (`avro/derived_schema.py`, `json/derived_json_schema.py`) and registered.
"""
