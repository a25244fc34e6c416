"""Run one piece of work on several GPUs of a machine, one thread per GPU; it ends for all of them or for none."""
