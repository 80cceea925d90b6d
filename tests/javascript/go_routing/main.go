// Prints the partition of each key of the JSON list COUNT KEYS, as the official Go client computes it: `hash/fnv` of Go, 64 bits, 1a.
package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
)

func main() {
	count, err := strconv.ParseUint(os.Args[1], 10, 64)
	if err != nil {
		panic(err)
	}
	var keys []string
	if err := json.Unmarshal([]byte(os.Args[2]), &keys); err != nil {
		panic(err)
	}
	for _, key := range keys {
		hash := fnv.New64a()
		hash.Write([]byte(key))
		fmt.Println(hash.Sum64() % count)
	}
}
