"""Parts that every long-running process of Paceline needs: pidfile, health, signals, hardening, fault points."""
