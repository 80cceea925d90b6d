// One channel of grpc-go with TLS, as the official Go client opens it, driven line by line: `channel TARGET CA`.
//
// A line on stdin is one call: METHOD, how many messages of the answer are read, a token or -, the request in hex. What
// came is one line on stdout: `ok HEX`, or `error CODE words`.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The bytes are made and read by the test.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (raw) Name() string                       { return "proto" }

func call(channel *grpc.ClientConn, line string) (string, error) {
	words := strings.Fields(line)
	count, _ := strconv.Atoi(words[1])
	request := []byte{}
	if len(words) > 3 {
		request, _ = hex.DecodeString(words[3])
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if words[2] != "-" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+words[2])
	}
	stream, err := channel.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+words[0], grpc.ForceCodec(raw{}))
	if err != nil {
		return "", err
	}
	// What goes wrong here is told by RecvMsg.
	_ = stream.SendMsg(&request)
	_ = stream.CloseSend()
	answers := []string{}
	for len(answers) < count {
		answer := []byte{}
		if err := stream.RecvMsg(&answer); err != nil {
			return "", err
		}
		answers = append(answers, hex.EncodeToString(answer))
	}
	return strings.Join(answers, " "), nil
}

func main() {
	pem, err := os.ReadFile(os.Args[2])
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		panic("no certificate in " + os.Args[2])
	}
	secure := grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots}))
	channel, err := grpc.NewClient(os.Args[1], secure)
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		answer, err := call(channel, lines.Text())
		if err != nil {
			found := status.Convert(err)
			fmt.Println("error", found.Code(), strings.ReplaceAll(found.Message(), "\n", " "))
		} else {
			fmt.Println("ok", answer)
		}
	}
}
