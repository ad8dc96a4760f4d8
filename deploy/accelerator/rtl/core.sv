// An adaptive array processing core: line buffer, array, accumulators (one line of sums for each which of a stream).
module core #(
    parameter int SIDE = 16,
    parameter int STREAM_BITS = 9
) (
    input  logic                    clock,
    input  logic [SIDE-1:0]         load_rows,
    input  logic [SIDE-1:0]         load_columns,
    input  logic                    load_bank,
    input  logic                    load_by_row,
    input  logic [SIDE*32-1:0]      load_line,
    // The stream's words as they come from the activation memory, with what they are; a cycle before the line buffer.
    input  logic                    stream_valid,
    input  logic [SIDE*32-1:0]      stream_line,
    input  logic [SIDE-1:0]         stream_rows,
    input  logic                    half,
    input  logic                    pair,
    input  logic                    odd,
    input  logic signed [17:0]      zero,
    input  logic                    bank,
    input  logic                    held,
    input  logic [SIDE*32-1:0]      column_line,
    input  logic                    first,
    input  logic                    last,
    input  logic [STREAM_BITS-1:0]  which,
    output logic                    out_valid,
    output logic [SIDE*64-1:0]      out_upper,
    output logic [SIDE*64-1:0]      out_lower,
    input  logic [$clog2(SIDE)-1:0] drain_column,
    input  logic                    drain_first_row,
    output logic [SIDE*64-1:0]      upper_drained,
    output logic [SIDE*64-1:0]      lower_drained
); /* verilator no_inline_module */
    // Line buffer: 32-bit words in halves; pairs of 16-bit activations, or one of them, less the zero point.
    logic [SIDE*17-1:0] upper, lower;
    logic [SIDE*32-1:0] columns;
    logic bank_2, held_2;
    integer i;
    logic [31:0] word;
    logic signed [17:0] high, low;
    always_ff @(posedge clock) begin
        for (i = 0; i < SIDE; i = i + 1) begin
            word = stream_line[i*32+:32];
            high = $signed({2'b00, word[31:16]}) - zero;
            low = $signed({2'b00, word[15:0]}) - zero;
            if (!stream_rows[i]) begin
                upper[i*17+:17] <= 17'd0;
                lower[i*17+:17] <= 17'd0;
            end else if (!half) begin
                upper[i*17+:17] <= {word[31], word[31:16]};
                lower[i*17+:17] <= {1'b0, word[15:0]};
            end else if (pair) begin
                upper[i*17+:17] <= high[16:0];
                lower[i*17+:17] <= low[16:0];
            end else begin
                upper[i*17+:17] <= 17'd0;
                lower[i*17+:17] <= odd ? high[16:0] : low[16:0];
            end
        end
        columns <= column_line;
        bank_2 <= bank;
        held_2 <= held;
    end

    // What belongs to a which travels with it.
    logic valid_2, valid_3, valid_4, first_2, first_3, first_4, last_2, last_3, last_4, held_3, held_4;
    logic [STREAM_BITS-1:0] vector_2, vector_3, vector_4;
    always_ff @(posedge clock) begin
        {valid_2, first_2, last_2, vector_2} <= {stream_valid, first, last, which};
        {valid_3, first_3, last_3, held_3, vector_3} <= {valid_2, first_2, last_2, held_2, vector_2};
        {valid_4, first_4, last_4, held_4, vector_4} <= {valid_3, first_3, last_3, held_3, vector_3};
    end

    wire [SIDE*64-1:0] upper_sums, lower_sums;
    array #(.SIDE(SIDE)) elements (
        .clock(clock), .load_rows(load_rows), .load_columns(load_columns), .load_bank(load_bank),
        .load_by_row(load_by_row), .load_line(load_line), .bank(bank_2), .held(held_2), .column_line(columns),
        .upper(upper), .lower(lower), .sum_valid(valid_3 && held_3), .sum_first(first_3), .sum_last(last_3),
        .upper_sums(upper_sums), .lower_sums(lower_sums), .drain_column(drain_column),
        .drain_first_row(drain_first_row), .upper_drained(upper_drained), .lower_drained(lower_drained)
    );

    logic [SIDE*128-1:0] accumulators [0:(1<<STREAM_BITS)-1];
    wire [SIDE*128-1:0] held_sums = accumulators[vector_4];
    logic [SIDE*128-1:0] after;
    integer j;
    always_comb
        for (j = 0; j < SIDE; j = j + 1) begin
            after[j*64+:64] = (first_4 ? 64'd0 : held_sums[j*64+:64]) + upper_sums[j*64+:64];
            after[(SIDE+j)*64+:64] = (first_4 ? 64'd0 : held_sums[(SIDE+j)*64+:64]) + lower_sums[j*64+:64];
        end
    always_ff @(posedge clock) begin
        if (valid_4 && !held_4) accumulators[vector_4] <= after;
        out_valid <= valid_4 && !held_4 && last_4;
        out_upper <= after[0+:SIDE*64];
        out_lower <= after[SIDE*64+:SIDE*64];
    end
endmodule
