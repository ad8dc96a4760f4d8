"""The command line, the pipeline that chains the stages, and the HTML report."""
