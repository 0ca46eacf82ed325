"""What the command line shows and checks: progress, run folders, pictures, the doctor."""
