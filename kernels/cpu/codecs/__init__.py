"""codecs: rows of any type read as float32, written from float32 and multiplied."""
