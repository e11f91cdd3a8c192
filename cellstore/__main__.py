from cellstore.cli import main

main()
