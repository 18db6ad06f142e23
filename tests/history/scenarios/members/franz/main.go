// A scripted member that uses franz-go: one argument and commands on standard input, as told.py has them. The client is
// made with the first subscription; the end of the input ends the process without a word to the broker.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type command struct {
	Do     string   `json:"do"`
	Topics []string `json:"topics"`
	Ms     int      `json:"ms"`
}

var out sync.Mutex

func tell(event string, detail any) {
	out.Lock()
	defer out.Unlock()
	line, _ := json.Marshal(map[string]string{"event": event, "detail": fmt.Sprint(detail)})
	fmt.Println(string(line))
}

func client(config map[string]string, topics []string) *kgo.Client {
	ms := func(name string) time.Duration {
		value, err := strconv.Atoi(config[name])
		if err != nil {
			panic(err)
		}
		return time.Duration(value) * time.Millisecond
	}
	var balancer kgo.GroupBalancer = kgo.RangeBalancer()
	if config["partition.assignment.strategy"] == "cooperative-sticky" {
		balancer = kgo.CooperativeStickyBalancer()
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(config["bootstrap.servers"], ",")...),
		kgo.ClientID(config["client.id"]),
		kgo.ConsumerGroup(config["group.id"]),
		kgo.ConsumeTopics(topics...),
		kgo.Balancers(balancer),
		kgo.SessionTimeout(ms("session.timeout.ms")),
		kgo.HeartbeatInterval(ms("heartbeat.interval.ms")),
		kgo.RebalanceTimeout(ms("max.poll.interval.ms")),
		kgo.AutoCommitInterval(ms("auto.commit.interval.ms")),
		kgo.MetadataMaxAge(ms("metadata.max.age.ms")),
		kgo.MetadataMinAge(time.Second),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if instance := config["group.instance.id"]; instance != "" {
		options = append(options, kgo.InstanceID(instance))
	}
	made, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	return made
}

func main() {
	var spec struct {
		Config map[string]string `json:"config"`
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &spec); err != nil {
		panic(err)
	}
	commands := make(chan command, 100)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			var told command
			if err := json.Unmarshal(lines.Bytes(), &told); err != nil {
				panic(err)
			}
			commands <- told
		}
		os.Exit(4)
	}()
	tell("ready", "")
	member := client(spec.Config, (<-commands).Topics)
	for {
		select {
		case told := <-commands:
			switch told.Do {
			case "subscribe":
				member.AddConsumeTopics(told.Topics...)
			case "sleep":
				time.Sleep(time.Duration(told.Ms) * time.Millisecond)
			case "close":
				member.Close()
				tell("closed", "")
				os.Exit(0)
			default:
				panic(told.Do)
			}
		default:
			soon, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			member.PollFetches(soon)
			cancel()
		}
	}
}
