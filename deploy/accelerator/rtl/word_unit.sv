// What is done to one number at a time between two networks (common/precision/fixed_words.py), after the job's start:
//   kind 0: an action and noise, its place the same;      six cycles a number, one for each draw of the generator
//   kind 1: a transition's error, Q less its target;      three cycles: it reads Q', then (reward, goes on), then Q
//   kind 2: an action's error through tanh;               a cycle
// read says which region of the activation memory is wanted: 0 the actions' or Q's, 1 transitions, 2 Q'. A name ends in
// the stage whose register it is; a number's first read is stage 0.
module word_unit #(
    parameter int SIDE = 16,
    parameter int FRACTION = 20
) (
    input  logic               clock,
    input  logic               reset,
    input  logic               start,
    input  logic         [1:0] kind,
    input  logic        [15:0] outputs,
    input  logic        [15:0] batch,
    input  logic        [15:0] offset,      // where the actions begin in a line of errors
    input  logic         [5:0] shift,       // fraction bits that an error has more than a value
    input  logic        [31:0] generator,   // the generator's first state
    input  logic signed [31:0] factor,      // discount, or the noise's deviation
    output logic               busy,
    output logic               reading,
    output logic         [1:0] read,
    output logic        [15:0] read_vector,
    output logic        [15:0] read_part,
    output logic        [15:0] read_error_part,
    input  logic [SIDE*32-1:0] activation_line,
    input  logic [SIDE*32-1:0] error_line,
    output logic               write,
    output logic        [15:0] write_vector,
    output logic        [15:0] write_part,
    output logic [SIDE*32-1:0] write_line
); /* verilator no_inline_module */
    localparam int LANES = $clog2(SIDE);
    localparam int LAST = 12;
    localparam logic [1:0] NOISE = 2'd0, DIFFERENCE = 2'd1;
    localparam logic [31:0] GOLDEN = 32'h9E3779B9, FIRST = 32'h7FEB352D, SECOND = 32'h846CA68B;
    localparam logic signed [31:0] ONE = 32'sd1 <<< FRACTION;
    localparam logic signed [31:0] TWELVE_MEANS = 32'sd6 - (32'sd6 <<< 16);
    localparam logic signed [63:0] HIGH = 64'sd2147483647;

    function automatic logic signed [31:0] saturated(input logic signed [63:0] x);
        saturated = x > HIGH ? 32'sh7fffffff : (x < -HIGH - 64'sd1 ? 32'sh80000000 : x[31:0]);
    endfunction
    function automatic logic signed [63:0] rounded(input logic signed [63:0] x, input int by);
        rounded = (x + (64'sd1 <<< (by - 1))) >>> by;
    endfunction

    // Which number, and which of its beats.
    logic issuing;
    logic [15:0] vector, place;
    logic [2:0] beat;
    wire [2:0] last_beat = kind == NOISE ? 3'd5 : (kind == DIFFERENCE ? 3'd2 : 3'd0);
    wire last_place = place + 16'd1 == outputs;
    wire [15:0] error_place = offset + place;
    always_ff @(posedge clock)
        if (reset) issuing <= 1'b0;
        else if (start) begin
            issuing <= 1'b1;
            {vector, place, beat} <= '0;
        end else if (issuing) begin
            beat <= beat == last_beat ? 3'd0 : beat + 3'd1;
            if (beat == last_beat) begin
                place <= last_place ? 16'd0 : place + 16'd1;
                if (last_place) vector <= vector + 16'd1;
                if (last_place && vector + 16'd1 == batch) issuing <= 1'b0;
            end
        end
    assign reading = issuing;
    assign read = kind == DIFFERENCE ? 2'd2 - beat[1:0] : 2'd0;
    assign read_vector = vector;
    assign read_part = place >> LANES;
    assign read_error_part = error_place >> LANES;

    // What travels with a number.
    logic [LAST:1] valids, ends;
    logic [LANES-1:0] lanes [1:LAST];
    logic [15:0] vectors [1:LAST];
    logic [15:0] parts [1:LAST];
    logic [LANES-1:0] error_lane_1;
    integer i;
    always_ff @(posedge clock) begin
        valids <= reset ? '0 : {valids[LAST-1:1], issuing && beat == 3'd0};
        ends <= {ends[LAST-1:1], last_place || &place[LANES-1:0]};
        lanes[1] <= place[LANES-1:0];
        vectors[1] <= vector;
        parts[1] <= place >> LANES;
        error_lane_1 <= error_place[LANES-1:0];
        for (i = 1; i < LAST; i = i + 1) begin
            lanes[i+1] <= lanes[i];
            vectors[i+1] <= vectors[i];
            parts[i+1] <= parts[i];
        end
    end

    // The generator: a hash of a counter, two uniform halves of a draw, twelve of them a near-normal number.
    logic [31:0] state, mixed_1, mixed_2, draw_3;
    logic signed [31:0] sum;
    logic [3:1] firsts;
    always_ff @(posedge clock) begin
        if (start) state <= generator;
        else if (issuing) state <= state + GOLDEN;
        mixed_1 <= (state ^ (state >> 16)) * FIRST;
        mixed_2 <= (mixed_1 ^ (mixed_1 >> 15)) * SECOND;
        draw_3 <= mixed_2 ^ (mixed_2 >> 16);
        firsts <= {firsts[2:1], beat == 3'd0};
        sum <= (firsts[3] ? TWELVE_MEANS : sum) + 32'(draw_3[31:16]) + 32'(draw_3[15:0]);
    end

    // The three results; those that are ready early wait.
    logic signed [31:0] words [2:11];
    logic signed [31:0] early [7:11];
    logic signed [31:0] error_2, error_3, error_4, reward_3, reward_4, value_4, value_5, target_5, added_11, result_12;
    logic signed [63:0] future_3, future_4, difference_6, square_3, slope_4, product_5, product_6, product_10;
    logic goes_on_3, goes_on_4;
    wire signed [31:0] noisy = words[11] + added_11;
    always_ff @(posedge clock) begin
        words[2] <= activation_line[lanes[1]*32+:32];
        for (i = 2; i < 11; i = i + 1) words[i+1] <= words[i];
        error_2 <= error_line[error_lane_1*32+:32];
        error_3 <= error_2;
        error_4 <= error_3;
        // Its target, and the error.
        future_3 <= 64'(words[2]) * 64'(factor);
        reward_3 <= activation_line[31:0];
        goes_on_3 <= activation_line[32];
        future_4 <= rounded(future_3, 30);
        {reward_4, goes_on_4} <= {reward_3, goes_on_3};
        value_4 <= activation_line[31:0];
        target_5 <= saturated(64'(reward_4) + (goes_on_4 ? future_4 : 64'sd0));
        value_5 <= value_4;
        difference_6 <= (64'(value_5) - 64'(target_5)) <<< shift;
        // The derivative of tanh.
        square_3 <= 64'(words[2]) * 64'(words[2]);
        slope_4 <= rounded((64'sd1 <<< (2 * FRACTION)) - square_3, FRACTION);
        product_5 <= 64'(error_4) * slope_4;
        product_6 <= rounded(product_5, FRACTION);
        early[7] <= saturated(kind == DIFFERENCE ? difference_6 : product_6);
        for (i = 7; i < 11; i = i + 1) early[i+1] <= early[i];
        // Noise: the sum is whole at stage 9.
        product_10 <= 64'(sum) * 64'(factor);
        added_11 <= 32'(rounded(product_10, 36 - FRACTION));
        result_12 <= kind != NOISE ? early[11] : (noisy > ONE ? ONE : (noisy < -ONE ? -ONE : noisy));
    end

    // A line is written when its last number is in.
    logic [SIDE*32-1:0] line;
    always_ff @(posedge clock)
        if (valids[LAST]) begin
            if (lanes[LAST] == '0) line <= {{(SIDE-1){32'd0}}, result_12};
            else line[lanes[LAST]*32+:32] <= result_12;
        end
    always_ff @(posedge clock) begin
        write <= !reset && valids[LAST] && ends[LAST];
        write_vector <= vectors[LAST];
        write_part <= parts[LAST];
    end
    assign write_line = line;
    assign busy = issuing || |valids || write;
endmodule
