"""The command ``tfrecord-index``, also ``python -m index_tools``: build and show indexes of TFRecord files."""
