"""``parsgd lab``: slow links on one machine, and the bytes that they carry."""
