"""One file per `gpuperf X`: its flags, its action and its own text."""
