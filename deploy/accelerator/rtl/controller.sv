// Which line is read when: the loops over tiles and vectors of a job. All outputs belong to the cycle of issue.
//
// A phase streams the vectors through one tile while the next tile's weights are loaded, and lasts as long as the longer
// of the two (deploy/accelerator/schedule.py). Forward: a column of W lies on a row of elements, columns interleaved
// over the cores; after a tile's lines comes the line of biases. Backward: a row of W lies on a row of elements.
// Gradient: nothing is loaded, and term tile 0 is the biases'. Jobs of the word unit count their own beats.
module controller #(
    parameter int CORES = 2,
    parameter int SIDE = 16
) (
    input  logic        clock,
    input  logic        reset,
    input  logic        start,
    input  logic        flushed,
    input  logic  [2:0] kind,
    input  logic [15:0] stream_length,
    input  logic [15:0] load_length,
    input  logic [15:0] out_tiles,
    input  logic [15:0] term_tiles,
    input  logic [19:0] lines,
    output logic        done,
    output logic [31:0] cycles,
    output logic        stream_valid,
    output logic        stream_first,
    output logic        stream_last,
    output logic [15:0] stream_index,
    output logic [15:0] stream_out,
    output logic [15:0] stream_term,
    output logic  [1:0] stream_step,
    output logic        load_valid,
    output logic [15:0] load_index,
    output logic [15:0] load_out,
    output logic [15:0] load_term,
    output logic  [1:0] load_step,
    output logic        line_valid,
    output logic [19:0] line
);
    localparam logic [2:0] GRADIENT = 3'd2, ADAM = 3'd3;
    localparam logic [1:0] IDLE = 2'd0, PRODUCT = 2'd1, LINES = 2'd2, FLUSH = 2'd3;

    logic  [1:0] state;
    logic [15:0] at;
    logic        streaming, loading;
    wire         held = kind == GRADIENT;
    wire         last_out = stream_out + 16'd1 == out_tiles;
    wire         last_term = stream_term + 16'd1 == term_tiles;
    wire [15:0]  stream_cycles = streaming ? stream_length : 16'd0;
    wire [15:0]  drain = held && !(last_out && last_term) ? 16'(SIDE) : 16'd0;
    wire [15:0]  load_cycles = loading ? load_length : drain;
    wire [15:0]  phase = stream_cycles > load_cycles ? stream_cycles : load_cycles;
    wire         phase_end = at + 16'd1 == phase;

    assign stream_valid = state == PRODUCT && streaming && at < stream_length;
    assign stream_index = at;
    // In a forward or backward job a vector's sum runs over the term tiles, in a gradient's over the vectors.
    assign stream_first = held ? at == 16'd0 : stream_term == 16'd0;
    assign stream_last = held ? at + 16'd1 == stream_length : last_term;
    assign load_valid = state == PRODUCT && loading && at < load_length;
    assign load_index = at;
    assign line_valid = state == LINES;

    always_ff @(posedge clock) begin
        done <= 1'b0;
        if (reset) begin
            state <= IDLE;
            cycles <= 32'd0;
        end else begin
            if (state != IDLE) cycles <= cycles + 32'd1;
            case (state)
                IDLE: if (start) begin
                    state <= kind[2] ? FLUSH : (kind == ADAM ? LINES : PRODUCT);
                    cycles <= 32'd0;
                    line <= 20'd0;
                    at <= 16'd0;
                    streaming <= held;
                    loading <= !held;
                    {stream_out, stream_term, stream_step} <= 34'd0;
                    {load_out, load_term, load_step} <= 34'd0;
                end
                PRODUCT: if (!phase_end) at <= at + 16'd1;
                else begin
                    at <= 16'd0;
                    streaming <= 1'b1;
                    if (streaming) begin
                        stream_step <= stream_step + 2'd1;
                        stream_term <= last_term ? 16'd0 : stream_term + 16'd1;
                        if (last_term) stream_out <= stream_out + 16'd1;
                        if (last_term && last_out) state <= FLUSH;
                    end
                    if (loading) begin
                        load_step <= load_step + 2'd1;
                        load_term <= load_term + 16'd1 == term_tiles ? 16'd0 : load_term + 16'd1;
                        if (load_term + 16'd1 == term_tiles) begin
                            load_out <= load_out + 16'd1;
                            loading <= load_out + 16'd1 != out_tiles;
                        end
                    end
                end
                LINES: begin
                    line <= line + 20'd1;
                    if (line + 20'd1 == lines) state <= FLUSH;
                end
                default: if (flushed) begin
                    state <= IDLE;
                    done <= 1'b1;
                end
            endcase
        end
    end
endmodule
