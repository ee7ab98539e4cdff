"""What web servers of ours share: requests and answers, their errors, who may come in, and a server's life."""
