module danube/routing

go 1.22
