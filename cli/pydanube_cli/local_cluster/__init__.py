"""`danube cluster local`: etcd and several brokers on this machine, as processes of one command."""
