"""Plans in virtual time: the event simulator, rate traces and their replay."""
