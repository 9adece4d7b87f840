"""Random large projects, and how soon each command ends after its time limit or a signal."""
