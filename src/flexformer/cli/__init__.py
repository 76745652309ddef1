"""The `flexformer` command: one thin typed function per sub-command, in a frame that needs no torch."""
