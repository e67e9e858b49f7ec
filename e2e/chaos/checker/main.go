// Tells whether histories of single rows are linearizable: each row is a register.
//
// Reads lines {"key", "client", "write", "value", "call", "return"} from standard input, in
// nanoseconds; prints {"operations", "rows", "illegal": [keys], "undecided": [keys]}.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

const perRow = 60 * time.Second

type operation struct {
	Key    int64 `json:"key"`
	Client int   `json:"client"`
	Write  bool  `json:"write"`
	Value  int64 `json:"value"`
	Call   int64 `json:"call"`
	Return int64 `json:"return"`
}

type verdict struct {
	Operations int     `json:"operations"`
	Rows       int     `json:"rows"`
	Illegal    []int64 `json:"illegal"`
	Undecided  []int64 `json:"undecided"`
}

// A row that was never written reads as 0.
var register = porcupine.Model{
	Init: func() interface{} { return int64(0) },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		done := input.(operation)
		if done.Write {
			return true, done.Value
		}
		return done.Value == state.(int64), state
	},
	DescribeOperation: func(input, output interface{}) string {
		done := input.(operation)
		if done.Write {
			return "write " + strconv.FormatInt(done.Value, 10)
		}
		return "read " + strconv.FormatInt(done.Value, 10)
	},
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

func main() {
	rows := map[int64][]porcupine.Operation{}
	result := verdict{Illegal: []int64{}, Undecided: []int64{}}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var done operation
		if err := json.Unmarshal(lines.Bytes(), &done); err != nil {
			fail(err)
		}
		rows[done.Key] = append(rows[done.Key], porcupine.Operation{
			ClientId: done.Client, Input: done, Call: done.Call, Return: done.Return,
		})
		result.Operations++
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
	result.Rows = len(rows)
	for key, history := range rows {
		found, info := porcupine.CheckOperationsVerbose(register, history, perRow)
		switch found {
		case porcupine.Illegal:
			result.Illegal = append(result.Illegal, key)
			if len(os.Args) > 1 {
				picture := fmt.Sprintf("%s/row-%d.html", os.Args[1], key)
				if err := porcupine.VisualizePath(register, info, picture); err != nil {
					fail(err)
				}
			}
		case porcupine.Unknown:
			result.Undecided = append(result.Undecided, key)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail(err)
	}
}
