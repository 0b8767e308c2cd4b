"""The commands of ``warmroute``, found through the group `warmroute.commands`."""
