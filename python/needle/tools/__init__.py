"""Tools of the command line: progress, run folders, pictures, the doctor."""
