"""Reports over many captures: a mapper for each file, small partial results that add up, and a reducer over these."""
