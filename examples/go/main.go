// A program in Go, or in any language: topics and messages over JSON-RPC, with nothing but the standard library.
//
//	danube up;  danube topics create from-go;  go run main.go [http://127.0.0.1:8765/rpc]
//
// For many messages a second use a client of Danube's protocol instead.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
)

var url = "http://127.0.0.1:8765/rpc"

func call(method string, params map[string]any) (result map[string]any) {
	body, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	answer, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	var reply struct{ Result, Error map[string]any }
	if err := json.NewDecoder(answer.Body).Decode(&reply); err != nil || reply.Error != nil {
		log.Fatal(method, ": ", err, reply.Error)
	}
	return reply.Result
}

func main() {
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	stored := call("messages.publish", map[string]any{"topic": "from-go", "payload": "hello"})
	fmt.Println("stored at offset", stored["offset"])
	fmt.Println(call("messages.peek", map[string]any{"topic": "from-go"})["items"])
}
