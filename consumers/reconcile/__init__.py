"""After a restore or a promotion that lost commits: what was submitted that the tables don't know any
more."""
