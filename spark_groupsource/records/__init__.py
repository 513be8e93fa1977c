"""Record batches of format version 2: encoding, decoding, validation, compression."""
