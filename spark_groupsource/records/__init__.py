"""Record batches: Kafka's format, to and from Arrow columns (pure).

It knows the three message formats, the codecs, and Arrow. Of partitions it knows names and numbers, which are columns
of a decoded batch, and Kafka's choice of the partition of a written record. It knows no leader, request or log:
`client/records` brings the bytes of a Fetch response, `broker/storage` those of a segment.

From bytes to columns
=====================

A record is never a Python object on this way, nor on the way back.

1. `columns/batch_selection.py` reads the headers of the batches in a response as columns
   (`columns/header_columns.py`), verifies their checksums, and leaves out what is not to be delivered: batches
   before the range, control batches, aborted transactions.
2. `columns/record_groups.py` joins batches until a group is worth one pass, and decompresses them into one buffer
   (`compression.py`, `fast_codecs.py`). A batch that is larger than memory should be is read in slices
   (`slices.py`).
3. A kernel validates the records of a group and copies their fields into columns (`columns/record_kernel.py`): in
   NumPy (`columns/numpy_kernel.py`, from the positions that `parser.py` finds), or with the extra `fast`, after
   millions of records, in one compiled pass (`columns/compiled_kernel.py`). Both read every record, and return the
   same.
4. `columns/arrow_columns.py` adds the columns that are the same for all records of a batch; `columns/arrow.py` is the
   whole way, and selects the kernel.

What the format demands
=======================

* Offsets and timestamps of a batch are differences to its header; a compacted batch keeps its base offset and has
  gaps.
* A checksum covers the compressed bytes, so it is verified before anything is decompressed.
* The number of records in the header is a claim of the producer: every length is checked against the bytes that are
  there.
* Memory of columns is used again when nothing refers to it (`columns/buffer_pool.py`), because new pages cost more
  than the conversion.

From columns to bytes
=====================

1. `columns/batch_encoder.py` divides the rows into chunks, before any array of 32-bit offsets is made
   (`columns/binary_columns.py`), and chooses the partition of each row (`key_partitions.py`).
2. The bytes of the records of a chunk are written by partition: in NumPy (`columns/record_payloads.py`), or with the
   extra `fast`, after millions of records, in compiled code (`columns/compiled_payloads.py`).
3. They wait until the batch of their partition is full, or until too many bytes wait.

Record objects are encoded by `encode.py`, or become columns (`columns/record_lists.py`). For the broker:
`validation.py` and `plain_records.py` (what a producer may send), `compaction.py` (what the cleaner keeps). For clients
of old brokers: `message_sets.py` (formats v0 and v1 become batches).
"""
