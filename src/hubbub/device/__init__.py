"""What runs where the record is: client, ledger, uploader. Light imports only."""
