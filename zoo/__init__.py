"""Teachers, students and core maps that this project's commands trained; README.md beside this file."""
