"""``python -m time2decide.cli``"""

from time2decide.cli import main

main()
