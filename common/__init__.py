"""What every stage shares and no option is: contracts, artefact files, errors, progress, processor, number formats."""
