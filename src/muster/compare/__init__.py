"""`muster compare`: one workload under the three generations of group coordination, counted, drawn and checked."""
