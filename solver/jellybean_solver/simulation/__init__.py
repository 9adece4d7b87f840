"""Plans in virtual time: the discrete-event simulator, rate traces and their replay."""
