"""Analysis of the traces of several ranks: exposed communication, waiting and transfer times, stragglers."""
