"""What real peers said in a real job, kept and given again."""
