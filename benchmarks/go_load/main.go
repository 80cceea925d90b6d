// A load tester in the shape of Danube's official Go client: each producer has a connection and one send in flight, each
// call has a deadline, each consumer acknowledges one message at a time. Messages are written by hand, so that nothing
// but gRPC is needed; counts are of what arrived, not of what was sent.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *(v.(*[]byte)), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*(v.(*[]byte)) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "proto" }

func number(to []byte, field int, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(to, uint64(field<<3)), value)
}

func text(to []byte, field int, value []byte) []byte {
	to = binary.AppendUvarint(binary.AppendUvarint(to, uint64(field<<3|2)), uint64(len(value)))
	return append(to, value...)
}

// fields of a message: the last of each number, as a number or as bytes
func fields(data []byte) (map[int]uint64, map[int][]byte) {
	numbers, texts := map[int]uint64{}, map[int][]byte{}
	for len(data) > 0 {
		key, n := binary.Uvarint(data)
		data = data[n:]
		value, n := binary.Uvarint(data)
		data = data[n:]
		if key&7 == 2 {
			texts[int(key>>3)] = data[:value]
			data = data[value:]
		} else {
			numbers[int(key>>3)] = value
		}
	}
	return numbers, texts
}

func dial(address string) *grpc.ClientConn {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		panic(err)
	}
	return connection
}

func call(connection *grpc.ClientConn, method string, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var response []byte
	err := connection.Invoke(ctx, method, &request, &response)
	return response, err
}

func must(data []byte, err error) []byte {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return data
}

// As many bytes as a small call and its answer have.
func rawCall(connection net.Conn) error {
	if _, err := connection.Write(make([]byte, 64)); err != nil {
		return err
	}
	_, err := io.ReadFull(connection, make([]byte, 40))
	return err
}

func main() {
	address := flag.String("address", "127.0.0.1:6650", "of the broker")
	producers := flag.Int("producers", 4, "each with one send in flight")
	consumers := flag.Int("consumers", 0, "each with one ack in flight; more than one share")
	size := flag.Int("size", 1024, "bytes of a payload")
	seconds := flag.Float64("seconds", 5, "of sending")
	name := flag.String("topic", "/default/goload", "topic")
	echo := flag.Bool("echo", false, "calls of danube.HealthCheck in place of sends: the smallest there is")
	raw := flag.Bool("raw", false, "the bytes of such a call and its answer over plain TCP: what the sockets take")
	shared := flag.Bool("shared", false, "producers share one connection, as those of one official client do")
	drain := flag.Int("drain", 0, "send so many first, and only then receive and acknowledge them")
	flag.Parse()
	topic := []byte(*name)
	create := func(connection *grpc.ClientConn, producer []byte) uint64 {
		request := number(text(text(number(nil, 1, 1), 2, producer), 3, topic), 6, 1)
		numbers, _ := fields(must(call(connection, "/danube.ProducerService/CreateProducer", request)))
		return numbers[2]
	}
	if *echo || *raw {
		*consumers = 0
	} else {
		create(dial(*address), []byte("first"))
	}
	var received, wrong, sum atomic.Int64
	receive := make(chan struct{}) // closed when consumers may begin
	if *drain == 0 {
		close(receive)
	}
	for i := range *consumers {
		connection := dial(*address)
		kind := uint64(0)
		if *consumers > 1 {
			kind = 1
		}
		request := text(text(text(number(nil, 1, 1), 2, topic), 3, fmt.Appendf(nil, "c%d", i)), 4, []byte("s"))
		numbers, _ := fields(must(call(connection, "/danube.ConsumerService/Subscribe", number(request, 5, kind))))
		stream, err := connection.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true},
			"/danube.ConsumerService/ReceiveMessages")
		must(nil, err)
		request = number(number(nil, 1, 1), 2, numbers[2])
		must(nil, stream.SendMsg(&request))
		must(nil, stream.CloseSend())
		go func() {
			<-receive
			for {
				var message []byte
				if stream.RecvMsg(&message) != nil {
					return
				}
				numbers, texts := fields(message)
				id, _ := fields(texts[2])
				ack := text(text(number(nil, 1, numbers[1]), 2, texts[2]), 3, []byte("s"))
				if _, err := call(connection, "/danube.ConsumerService/Ack", ack); err != nil {
					wrong.Add(1)
				}
				sum.Add(int64(id[5]))
				received.Add(1)
			}
		}()
	}
	var group sync.WaitGroup
	var sent atomic.Int64
	senders := *producers
	if *drain > 0 {
		senders = 64
	}
	times := make([][]float64, senders)
	connections := make([]*grpc.ClientConn, senders)
	plain := make([]net.Conn, senders)
	for i := range connections {
		if *raw {
			connection, err := net.Dial("tcp", *address)
			must(nil, err)
			plain[i] = connection
			continue
		}
		if *shared && i > 0 {
			connections[i] = connections[0]
			continue
		}
		connections[i] = dial(*address)
		if *echo {
			must(call(connections[i], "/danube.HealthCheck/HealthCheck", number(nil, 3, 1)))
		}
	}
	begun := time.Now()
	for i, connection := range connections {
		group.Add(1)
		go func() {
			defer group.Done()
			producer := fmt.Appendf(nil, "p%d", i)
			var id []byte
			if !*echo && !*raw {
				id = text(number(nil, 1, create(connection, producer)), 2, topic)
			}
			payload := make([]byte, *size)
			for counter := uint64(2); ; counter++ {
				start := time.Now()
				if *drain == 0 && time.Since(begun).Seconds() >= *seconds {
					return
				}
				if *drain > 0 && int(counter-2) >= *drain/senders {
					return
				}
				if *raw {
					must(nil, rawCall(plain[i]))
					sent.Add(1)
					times[i] = append(times[i], time.Since(start).Seconds()*1000)
					continue
				}
				path, request := "/danube.HealthCheck/HealthCheck", number(nil, 3, 1)
				if !*echo {
					path = "/danube.ProducerService/SendMessage"
					request = text(text(number(nil, 1, counter), 2, id), 3, payload)
					request = text(number(request, 4, uint64(start.UnixMilli())), 5, producer)
				}
				if _, err := call(connection, path, request); err != nil {
					wrong.Add(1)
					continue
				}
				sent.Add(1)
				times[i] = append(times[i], time.Since(start).Seconds()*1000)
			}
		}()
	}
	group.Wait()
	elapsed := time.Since(begun).Seconds()
	if *drain > 0 {
		fmt.Println("sent") // whoever measures the broker begins now
		var line string
		fmt.Scanln(&line)
		begun = time.Now()
		close(receive)
		for received.Load() < sent.Load() && time.Since(begun).Seconds() < *seconds {
			time.Sleep(time.Millisecond)
		}
		elapsed = time.Since(begun).Seconds()
	}
	meanwhile := received.Load()
	if *consumers > 0 && *drain == 0 {
		for last := int64(-1); received.Load() < sent.Load() && received.Load() != last; {
			last = received.Load()
			time.Sleep(2 * time.Second)
		}
	}
	all := []float64{}
	for _, part := range times {
		all = append(all, part...)
	}
	sort.Float64s(all)
	fmt.Printf(`{"producers": %d, "consumers": %d, "sent": %d, "sends_per_s": %.0f, "p50_ms": %.3f, "p99_ms": %.3f, `+
		`"received_meanwhile_per_s": %.0f, "received": %d, "offsets_sum": %d, "errors": %d}`+"\n",
		*producers, *consumers, sent.Load(), float64(sent.Load())/elapsed, all[len(all)/2], all[len(all)*99/100],
		float64(meanwhile)/elapsed, received.Load(), sum.Load(), wrong.Load())
}
