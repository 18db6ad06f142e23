"""The main job: real data through a broker, a group of four members and Spark, checked to the end."""
